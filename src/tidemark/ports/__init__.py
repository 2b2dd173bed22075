"""What a machine may ask of the world, as Protocols. Shells and other machines fit them; nobody imports them."""

from tidemark.ports.apart import Apart, Running, Scratch
from tidemark.ports.content import Content
from tidemark.ports.disk import Disk
from tidemark.ports.image import Image, Pictured
from tidemark.ports.journal import CatalogLog, Journal, Recovered, Residents
from tidemark.ports.sink import Sink, StreamSink

__all__ = [
    "Apart",
    "CatalogLog",
    "Content",
    "Disk",
    "Image",
    "Journal",
    "Pictured",
    "Recovered",
    "Residents",
    "Running",
    "Scratch",
    "Sink",
    "StreamSink",
]
