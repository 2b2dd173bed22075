from tidemark.broker.streams._rows_py import conflict as conflict
from tidemark.broker.streams._rows_py import gather as gather
from tidemark.broker.streams._rows_py import put_rows as put_rows
from tidemark.broker.streams._rows_py import select_keys as select_keys
