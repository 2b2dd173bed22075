from tidemark.broker._publisher_py import Meter as Meter
from tidemark.broker._publisher_py import Publisher as Publisher
from tidemark.broker._publisher_py import Route as Route
