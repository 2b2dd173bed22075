"""The management API over HTTP, with the paths and field names of RabbitMQ's, as far as `tidemark ctl` needs them."""
