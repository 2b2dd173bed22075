from tidemark.model._rows_py import check_column as check_column
from tidemark.model._rows_py import check_flags as check_flags
from tidemark.model._rows_py import rows_digest as rows_digest
