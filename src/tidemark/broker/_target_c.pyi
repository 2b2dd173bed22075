from tidemark.broker._target_py import Target as Target
