"""A whole cluster on virtual time: real members, simulated disks, links, clocks and etcd, and clients that keep books."""
