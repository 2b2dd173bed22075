from tidemark.wire.amqp091._cutter_py import Cutter as Cutter
from tidemark.wire.amqp091._cutter_py import retag as retag
