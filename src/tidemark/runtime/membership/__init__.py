"""Who is in the cluster and who leads, kept outside the members: `etcd.py` keeps it in an etcd."""
