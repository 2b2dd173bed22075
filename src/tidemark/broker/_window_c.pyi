from tidemark.broker._window_py import Window as Window
