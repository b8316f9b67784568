"""A local object store for tests: Moto for S3, gcp-storage-emulator for Google Cloud Storage.

Usage: object_store.py ACTION KIND PORT BUCKET [DIRECTORY]. The kind is s3 or gs. The actions are
serve, create (the bucket), require-permissions, and download (all objects into
the directory, by a client that is not ours).
"""

import json
import os
import pathlib
import sys
import time
import urllib.parse
import urllib.request

action, kind, port, bucket = sys.argv[1:5]
endpoint = f"http://127.0.0.1:{port}"


def call(method, path, body=None, content_type="application/json"):
    request = urllib.request.Request(
        endpoint + path, data=body, method=method, headers={"Content-Type": content_type}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def s3():
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def serve():
    if kind == "s3":
        server = str(pathlib.Path(sys.executable).with_name("moto_server"))
        os.execv(server, [server, "--host", "127.0.0.1", "--port", port])
    serve_cloud_storage()


def serve_cloud_storage():
    import hashlib

    from gcp_storage_emulator.handlers import objects

    def with_headers(handler):
        # The service sends these headers, and the emulator does not.
        def handle(request, response, *arguments, **named):
            handler(request, response, *arguments, **named)
            response["ETag"] = hashlib.md5(request.path.encode()).hexdigest()
            response["Last-Modified"] = "Thu, 01 Jan 2026 00:00:00 GMT"

        return handle

    objects.xml_upload = with_headers(objects.xml_upload)
    objects.download = with_headers(objects.download)
    # Imported last, because its table of handlers keeps the functions.
    from gcp_storage_emulator.server import RequestHandler, create_server

    def decoded(handle):
        # The service also accepts names in which every special character is encoded.
        def handle_decoded(self):
            if not self.path.startswith(("/storage/", "/upload/", "/download/")):
                self.path = urllib.parse.unquote(self.path)
            handle(self)

        return handle_decoded

    RequestHandler.do_GET = decoded(RequestHandler.do_GET)
    RequestHandler.do_PUT = decoded(RequestHandler.do_PUT)
    create_server("127.0.0.1", int(port), in_memory=True).run()


def create():
    if kind == "s3":
        s3().create_bucket(Bucket=bucket)
    else:
        call("POST", "/storage/v1/b?project=test", json.dumps({"name": bucket}).encode())


def objects():
    if kind == "s3":
        client = s3()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for entry in page.get("Contents", []):
                yield entry["Key"], client.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()
        return
    listed = json.loads(call("GET", f"/storage/v1/b/{bucket}/o"))
    for entry in listed.get("items", []):
        name = urllib.parse.quote(entry["name"], safe="")
        yield entry["name"], call("GET", f"/storage/v1/b/{bucket}/o/{name}?alt=media")


def download(directory):
    for name, content in objects():
        # The last folder is that of the table. The archive's prefix is left out.
        path = pathlib.Path(directory, *name.split("/")[-2:])
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


match action:
    case "serve":
        serve()
    case "create":
        create()
    case "require-permissions":
        call("POST", "/moto-api/reset-auth", b"0", "text/plain")
    case "download":
        download(sys.argv[5])
