"""Three nodes on one machine: replicated publishing, failover and catch-up, beside RabbitMQ and NATS JetStream."""
