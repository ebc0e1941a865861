"""Uploads in parts that nobody finishes: they are in no listing, and are paid for until aborted.

S3 and its kin keep the parts of an upload until it is completed or aborted. A run that is killed
does neither.
"""

from collections.abc import Callable, Iterator
from typing import Any

_MOST_PAGES = 1000


def abort_uploads(files: Any, root: str, is_ours: Callable[[str], bool]) -> int:
    """Abort those below a prefix whose names in it are ours; return how many. Others have none."""
    if not hasattr(files, "call_s3"):
        return 0
    bucket, _, prefix = root.strip("/").partition("/")
    prefix = f"{prefix}/" if prefix else ""
    count = 0
    for key, upload in list(_uploads(files, bucket, prefix)):
        if is_ours(key.removeprefix(prefix)):
            try:
                files.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)
            except FileNotFoundError:
                continue  # it has ended meanwhile
            count += 1
    return count


def _uploads(files: Any, bucket: str, prefix: str) -> Iterator[tuple[str, str]]:
    markers: dict[str, str] = {}
    for _ in range(_MOST_PAGES):
        page = files.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **markers)
        for upload in page.get("Uploads", []):
            yield upload["Key"], upload["UploadId"]
        if not page.get("IsTruncated"):
            return
        markers = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }
