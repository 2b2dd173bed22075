from tidemark.broker._queue_py import QueueCore as QueueCore
