"""Hot standby: the leader feeds every other member."""
