from tidemark.store._frames_py import Buffer
from tidemark.store._frames_py import crc32c as crc32c
from tidemark.store._frames_py import find as find
from tidemark.store._frames_py import scan as scan
from tidemark.store._frames_py import seal as seal
from tidemark.store._frames_py import sift as sift
from tidemark.store._frames_py import survey as survey
from tidemark.store._frames_py import walk as walk

def crc32c_by_table(data: Buffer, crc: int = 0) -> int: ...
