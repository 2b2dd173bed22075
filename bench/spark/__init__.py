"""How fast the pipeline on Spark is, beside what Spark and PostgreSQL do by themselves in the same run."""
