# cython: language_level=3
"""Compiled twin of `_disk_py`: the same jobs, groups and errors, in a thread that never takes the GIL."""

from collections import deque

from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from posix.types cimport off_t


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_create(pthread_t *, void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_mutex_destroy(pthread_mutex_t *)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *, int, unsigned int)
    int sem_post(sem_t *)
    int sem_wait(sem_t *)
    int sem_destroy(sem_t *)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t *)
    int pthread_sigmask(int, const sigset_t *, sigset_t *)
    int SIG_SETMASK

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev(int, const iovec *, int, off_t)

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd_write(int, uint64_t)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int)

cdef extern from "<errno.h>" nogil:
    int EIO

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int, timespec *)
    int CLOCK_MONOTONIC

cdef enum:
    VECTOR_MAX = 512
    CLASSES = 24        # `histogram.CLASSES`

ctypedef struct Job:
    int64_t ticket
    off_t offset
    char *data
    size_t length
    int fd

ctypedef struct Shared:
    pthread_mutex_t lock
    # Posted when the queue is not empty any more, and at the end. Not a condition: whoever wakes up from one
    # leaves its lock as if others waited for it, and each unlock is a call of the system then.
    sem_t work
    # The queue that the loop fills, and the one that the thread works on.
    Job *jobs
    size_t count
    size_t room
    Job *taken
    size_t taken_room
    int64_t completed
    int bell
    int stopping
    int error_fd
    int error_number
    int error_in_sync
    # What the thread has done so far: see `Flusher.statistics`.
    uint64_t written
    uint64_t syncs[CLASSES]
    uint64_t syncs_us
    uint64_t groups[CLASSES]
    uint64_t groups_total


cdef inline int class_of(uint64_t value) noexcept nogil:
    """The least i for which 2^i is not below the value."""
    cdef int found = 0
    while found < CLASSES - 1 and (<uint64_t>1 << found) < value:
        found += 1
    return found


cdef inline uint64_t now_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000 + <uint64_t>now.tv_nsec // 1000


cdef int write_all(int fd, iovec *vector, int count, off_t offset) noexcept nogil:
    """Write every byte of the vector; 0, or the error's number."""
    cdef ssize_t written
    cdef int at = 0
    while at < count:
        written = pwritev(fd, vector + at, count - at, offset)
        if written < 0:
            if errno == EINTR:
                continue
            return errno
        if written == 0 and vector[at].iov_len > 0:
            return EIO
        offset += written
        while at < count and <size_t>written >= vector[at].iov_len:
            written -= vector[at].iov_len
            at += 1
        if at < count and written:
            vector[at].iov_base = <char *>vector[at].iov_base + written
            vector[at].iov_len -= written
    return 0


cdef int write_group(Job *jobs, size_t count, int *in_sync, uint64_t *took_us) noexcept nogil:
    cdef:
        iovec vector[VECTOR_MAX]
        size_t at = 0
        int used, problem
        off_t first, end
        uint64_t began_us
    in_sync[0] = 0
    while at < count:
        used = 0
        first = end = jobs[at].offset
        while at < count and used < VECTOR_MAX and jobs[at].offset == end:
            vector[used].iov_base = jobs[at].data
            vector[used].iov_len = jobs[at].length
            end += jobs[at].length
            used += 1
            at += 1
        problem = write_all(jobs[0].fd, vector, used, first)
        if problem:
            return problem
    in_sync[0] = 1
    began_us = now_us()
    while fdatasync(jobs[0].fd) != 0:
        if errno != EINTR:
            return errno
    took_us[0] = now_us() - began_us
    return 0


cdef void *run(void *argument) noexcept nogil:
    cdef:
        Shared *shared = <Shared *>argument
        Job *jobs
        size_t count, room, start, end, at
        int problem, in_sync
        uint64_t took_us, written
        sigset_t every
    # Signals are the loop's business.
    sigfillset(&every)
    pthread_sigmask(SIG_SETMASK, &every, NULL)
    while True:
        while sem_wait(&shared.work) != 0:
            pass  # a signal
        pthread_mutex_lock(&shared.lock)
        jobs, count, room = shared.jobs, shared.count, shared.room
        shared.jobs, shared.room, shared.count = shared.taken, shared.taken_room, 0
        shared.taken, shared.taken_room = jobs, room
        problem = shared.error_number
        pthread_mutex_unlock(&shared.lock)
        if count == 0:
            if shared.stopping:
                return NULL
            continue
        start = 0
        while start < count and problem == 0:
            end = start + 1
            while end < count and jobs[end].fd == jobs[start].fd:
                end += 1
            in_sync = 0
            took_us = written = 0
            problem = write_group(jobs + start, end - start, &in_sync, &took_us)
            for at in range(start, end):
                written += jobs[at].length
            pthread_mutex_lock(&shared.lock)
            if problem:
                shared.error_fd = jobs[start].fd
                shared.error_number = problem
                shared.error_in_sync = in_sync
            else:
                shared.completed = jobs[end - 1].ticket
                shared.written += written
                shared.syncs[class_of(took_us)] += 1
                shared.syncs_us += took_us
                shared.groups[class_of(end - start)] += 1
                shared.groups_total += end - start
            pthread_mutex_unlock(&shared.lock)
            eventfd_write(shared.bell, 1)
            start = end


cdef class Flusher:
    cdef Shared *_shared
    cdef pthread_t _thread
    cdef bint _running
    cdef int64_t _submitted
    # (ticket, buffer) of what the thread may still read.
    cdef object _kept

    def __cinit__(self, int bell):
        self._kept = deque()
        self._shared = <Shared *>calloc(1, sizeof(Shared))
        if self._shared is NULL:
            raise MemoryError()
        self._shared.bell = bell
        pthread_mutex_init(&self._shared.lock, NULL)
        sem_init(&self._shared.work, 0, 0)
        if pthread_create(&self._thread, NULL, run, self._shared) != 0:
            raise RuntimeError("the disk thread could not be started")
        self._running = True

    def __dealloc__(self):
        if self._shared is not NULL:
            self._end()
            sem_destroy(&self._shared.work)
            pthread_mutex_destroy(&self._shared.lock)
            free(self._shared.jobs)
            free(self._shared.taken)
            free(self._shared)

    def submit(self, int64_t ticket, int fd, int64_t offset, data):
        cdef:
            object view = PyMemoryView_FromObject(data)
            Shared *shared = self._shared
            Job *grown
            Job *job
            int full = 0, first = 0
        if not PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(view), b"C"):
            raise TypeError("the bytes do not lie together")
        if ticket <= self._submitted:
            raise ValueError(f"ticket {ticket} does not follow {self._submitted}")
        if not self._running:
            raise ValueError("the flusher is closed")
        pthread_mutex_lock(&shared.lock)
        if shared.count == shared.room:
            grown = <Job *>realloc(shared.jobs, (2 * shared.room + 16) * sizeof(Job))
            if grown is NULL:
                full = 1
            else:
                shared.jobs = grown
                shared.room = 2 * shared.room + 16
        if not full:
            job = &shared.jobs[shared.count]
            job.ticket, job.fd, job.offset = ticket, fd, offset
            job.data = <char *>PyMemoryView_GET_BUFFER(view).buf
            job.length = PyMemoryView_GET_BUFFER(view).len
            shared.count += 1
            first = shared.count == 1
        pthread_mutex_unlock(&shared.lock)
        if full:
            raise MemoryError()
        if first:
            # Not under the lock, which is the first thing that the thread wants.
            sem_post(&shared.work)
        self._submitted = ticket
        self._kept.append((ticket, view))

    def completed(self):
        cdef int64_t done
        pthread_mutex_lock(&self._shared.lock)
        done = self._shared.completed
        pthread_mutex_unlock(&self._shared.lock)
        while self._kept and <int64_t>self._kept[0][0] <= done:
            self._kept.popleft()
        return done

    def error(self):
        cdef int fd, number, in_sync
        pthread_mutex_lock(&self._shared.lock)
        fd, number = self._shared.error_fd, self._shared.error_number
        in_sync = self._shared.error_in_sync
        pthread_mutex_unlock(&self._shared.lock)
        return (fd, number, "sync" if in_sync else "write") if number else None

    def statistics(self):
        cdef:
            Shared *shared = self._shared
            uint64_t written, syncs_us, groups_total
            uint64_t syncs[CLASSES]
            uint64_t groups[CLASSES]
            int i
        pthread_mutex_lock(&shared.lock)
        written, syncs_us, groups_total = shared.written, shared.syncs_us, shared.groups_total
        for i in range(CLASSES):
            syncs[i], groups[i] = shared.syncs[i], shared.groups[i]
        pthread_mutex_unlock(&shared.lock)
        return (
            written,
            tuple([syncs[i] for i in range(CLASSES)]),
            syncs_us,
            tuple([groups[i] for i in range(CLASSES)]),
            groups_total,
        )

    def close(self):
        self._end()
        self._kept.clear()

    cdef _end(self):
        if self._running:
            self._running = False
            pthread_mutex_lock(&self._shared.lock)
            self._shared.stopping = 1
            pthread_mutex_unlock(&self._shared.lock)
            sem_post(&self._shared.work)
            with nogil:
                pthread_join(self._thread, NULL)
