SELECT number, detail FROM receipts ORDER BY number
