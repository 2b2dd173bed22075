"""What a machine may ask of the world, as Protocols. Shells and other machines fit them; nobody imports them."""

from tidemark.ports.content import Content
from tidemark.ports.disk import Disk
from tidemark.ports.journal import CatalogLog, Journal, Recovered, Residents
from tidemark.ports.sink import Sink

__all__ = ["CatalogLog", "Content", "Disk", "Journal", "Recovered", "Residents", "Sink"]
