SELECT number FROM receipts WHERE idempotency_key = ?
