from tidemark.broker._unacked_py import Holder as Holder
from tidemark.broker._unacked_py import Unacked as Unacked
