"""Photos in a bucket: headrace against those who stream from S3, first and later epochs, requests and bytes."""
