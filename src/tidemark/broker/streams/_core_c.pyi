from tidemark.broker.streams._core_py import StreamCore as StreamCore
