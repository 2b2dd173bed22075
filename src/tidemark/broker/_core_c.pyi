from tidemark.broker._core_py import Holder as Holder
from tidemark.broker._core_py import Publisher as Publisher
from tidemark.broker._core_py import QueueCore as QueueCore
from tidemark.broker._core_py import Restorer as Restorer
from tidemark.broker._core_py import Route as Route
from tidemark.broker._core_py import Unacked as Unacked
