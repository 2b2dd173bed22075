"""One AMQP broker made of several groups: the machine between a client and the leaders of the groups."""
