"""Tables whose cells wait for their neighbors along two dims, diagonal by diagonal."""
