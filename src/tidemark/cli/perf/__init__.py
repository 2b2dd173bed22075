"""`tidemark perf`: a load generator for AMQP brokers that counts what it sends and proves that all of it came back.

`wire` has the two ends of a connection, on our own codec; `tally` has latencies and the book of what was seen; `run`
puts publishers and consumers together; `command` has the words. Nothing but Tidemark's own dependencies is needed, and
any broker that speaks AMQP 0-9-1 can be measured.
"""
