/* The ceiling for durable publishing: a bare pwrite + fdatasync loop.
 *
 * It writes a file full once, so that every block is allocated and written, then overwrites it
 * from the start, one batch and one fdatasync at a time, as a journal does in a recycled segment.
 * It prints one JSON object.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void die(const char *what) {
    fprintf(stderr, "rawdisk: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void write_at(int fd, const char *data, size_t n, off_t at) {
    while (n) {
        ssize_t done = pwrite(fd, data, n, at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            die("cannot write");
        data += done;
        at += done;
        n -= (size_t)done;
    }
}

int main(int argc, char **argv) {
    static const struct option names[] = {{"file", 1, 0, 'f'},
                                          {"bytes", 1, 0, 'b'},
                                          {"seconds", 1, 0, 's'},
                                          {"file-bytes", 1, 0, 'z'},
                                          {0, 0, 0, 0}};
    const char *path = NULL;
    size_t batch = 4096, file_bytes = 64 << 20;
    double seconds = 2;
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
        case 'f': path = optarg; break;
        case 'b': batch = strtoul(optarg, NULL, 10); break;
        case 's': seconds = strtod(optarg, NULL); break;
        case 'z': file_bytes = strtoul(optarg, NULL, 10); break;
        default: return 2;
        }
    }
    if (!path || batch == 0 || batch > file_bytes || file_bytes > (size_t)4 << 30 ||
        !(seconds > 0 && seconds <= 600)) {
        fputs("usage: rawdisk --file PATH [--bytes BATCH] [--seconds S, up to 600] [--file-bytes "
              "N, up to 4 GiB]\n",
              stderr);
        return 2;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        die(path);
    size_t chunk = batch > (1 << 20) ? batch : 1 << 20;
    char *data = malloc(chunk);
    size_t samples_max = 4 << 20, syncs = 0;
    float *us = malloc(samples_max * sizeof *us);
    if (!data || !us)
        die("out of memory");
    memset(data, 'x', chunk);
    for (size_t at = 0; at < file_bytes; at += chunk)
        write_at(fd, data, chunk < file_bytes - at ? chunk : file_bytes - at, (off_t)at);
    if (fsync(fd))
        die("cannot sync");

    size_t at = 0;
    double start = now_s(), end = start;
    while (end - start < seconds && syncs < samples_max) {
        double before = end;
        if (at + batch > file_bytes)
            at = 0;
        write_at(fd, data, batch, (off_t)at);
        at += batch;
        if (fdatasync(fd))
            die("cannot sync");
        end = now_s();
        us[syncs++] = (float)((end - before) * 1e6);
    }
    qsort(us, syncs, sizeof *us, by_value);
    printf("{\"batch_bytes\": %zu, \"syncs\": %zu, \"seconds\": %.4f, \"syncs_per_s\": %.1f, "
           "\"bytes_per_s\": %.0f, "
           "\"sync_us\": {\"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}}\n",
           batch, syncs, end - start, (double)syncs / (end - start),
           (double)(syncs * batch) / (end - start), us[syncs / 2], us[syncs * 99 / 100],
           us[syncs - 1]);
    close(fd);
    unlink(path);
    return 0;
}
