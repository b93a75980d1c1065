"""Parquet: one document a row."""

from collections.abc import Iterator
from typing import Literal

from mnemax.data.sources import BadItems, SourceConfig, reason
from mnemax.data.sources.text import find_files
from mnemax.errors import UserError


class ParquetSource(SourceConfig):
    """Parquet files with a text column, read one row group at a time; null rows are ignored."""

    kind: Literal["parquet"] = "parquet"
    path: str
    """A file, a glob or a folder."""
    field: str = "text"

    def texts(self, bad: BadItems) -> Iterator[str]:
        import pyarrow
        from pyarrow import parquet

        for path in find_files(self.path):
            try:
                with parquet.ParquetFile(path) as file:
                    column = {field.name: field.type for field in file.schema_arrow}
                    if self.field not in column:
                        raise UserError(f"{path} has no column '{self.field}' (it has {', '.join(column) or 'none'}); set `field`.")
                    if column[self.field] not in (
                        pyarrow.string(),
                        pyarrow.large_string(),
                        pyarrow.string_view(),
                    ):
                        raise UserError(f"{path}: the column '{self.field}' is {column[self.field]}, not a string.")
                    for batch in file.iter_batches(columns=[self.field]):
                        yield from (text for text in batch.column(0).to_pylist() if text is not None)
            except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
                raise UserError(f"{path} cannot be read, it is damaged, cut off or not Parquet: {reason(error)}.") from error
