"""Arrow and Parquet files: what pyarrow reads, as columns."""
