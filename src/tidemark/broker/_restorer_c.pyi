from tidemark.broker._restorer_py import Restorer as Restorer
