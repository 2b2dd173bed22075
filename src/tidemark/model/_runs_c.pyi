from tidemark.model._runs_py import PublishRun as PublishRun
from tidemark.model._runs_py import Taken as Taken
