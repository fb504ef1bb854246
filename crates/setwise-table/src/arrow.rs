//! Parquet and Arrow IPC files, and record batches.

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::types::{
    Date32Type, Date64Type, Decimal128Type, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType,
    DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, Float64Array, RecordBatch, RecordBatchReader, StringArray, TimestampMillisecondArray,
};
use arrow_schema::{DataType, SchemaRef, TimeUnit};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::file::reader::ChunkReader;
use rayon::prelude::*;

use crate::error::{Error, Reason, Result};
use crate::table::{Column, Table, Text, Values};

impl Table {
    /// The content of a Parquet file with these columns. Missing values are null.
    pub fn to_parquet(&self) -> Vec<u8> {
        let present = |x: &f64| (!x.is_nan()).then_some(*x);
        let array = |column: &Column| -> ArrayRef {
            match &column.values {
                Values::Numbers(v) => Arc::new(v.iter().map(present).collect::<Float64Array>()),
                Values::Times(v) => {
                    let milliseconds = v.iter().map(|x| present(x).map(|x| (1e3 * x).round() as i64));
                    Arc::new(milliseconds.collect::<TimestampMillisecondArray>())
                }
                Values::Text(text) => Arc::new((0..text.codes.len()).map(|i| text.get(i)).collect::<StringArray>()),
            }
        };
        let columns = self.columns.iter().map(|column| (column.name.as_str(), array(column), true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns of equal length");
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).expect("columns of simple types");
        writer.write(&batch).and_then(|()| writer.close()).expect("a write to memory");
        bytes
    }
}

/// Rows of a batch.
const BATCH: usize = 1 << 16;

/// Reads a Parquet file, column by column.
pub(crate) fn read_parquet_file(path: &Path) -> Result<Table> {
    let open = || File::open(path).map_err(Error::io(path));
    let metadata = ArrowReaderMetadata::load(&open()?, ArrowReaderOptions::default());
    let metadata = metadata.map_err(|e| Error::file(path, damaged("a Parquet", &e)))?;
    let read = |c: usize| Ok(read_parquet_column(open()?, &metadata, c).map_err(|e| Error::file(path, e)));
    let columns = (0..metadata.schema().fields().len()).into_par_iter().map(read).collect::<Result<Vec<_>>>()?;
    let columns = columns.into_iter().collect::<Result<Vec<_>>>()?;
    collected(path.to_owned(), metadata.schema().clone(), columns).map_err(|e| Error::file(path, e))
}

/// Reads the content of a Parquet file.
pub(crate) fn read_parquet(path: PathBuf, bytes: Vec<u8>) -> Reason<Table> {
    let bytes = bytes::Bytes::from(bytes);
    let metadata = ArrowReaderMetadata::load(&bytes, ArrowReaderOptions::default());
    let metadata = metadata.map_err(|e| damaged("a Parquet", &e))?;
    let read = |c: usize| read_parquet_column(bytes.clone(), &metadata, c);
    let columns = (0..metadata.schema().fields().len()).into_par_iter().map(read).collect::<Reason<Vec<_>>>()?;
    collected(path, metadata.schema().clone(), columns)
}

fn read_parquet_column(
    file: impl ChunkReader + 'static,
    metadata: &ArrowReaderMetadata,
    c: usize,
) -> Reason<Option<Values>> {
    let Some(mut values) = empty(metadata.schema().field(c).data_type()) else { return Ok(None) };
    let mask = ProjectionMask::roots(metadata.parquet_schema(), [c]);
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata.clone());
    let batches = builder.with_projection(mask).with_batch_size(BATCH).build().map_err(|e| damaged("a Parquet", &e))?;
    for batch in batches {
        append(&mut values, batch.map_err(|e| damaged("a Parquet", &e))?.column(0));
    }
    Ok(Some(values))
}

/// Reads the content of an Arrow IPC file or stream.
pub(crate) fn read_ipc(path: PathBuf, bytes: Vec<u8>) -> Reason<Table> {
    let failed = |e: arrow_schema::ArrowError| damaged("an Arrow", &e);
    let content = Cursor::new(bytes.as_slice());
    if bytes.starts_with(b"ARROW1") {
        let reader = arrow_ipc::reader::FileReader::try_new(content, None).map_err(failed)?;
        read_batches(path, reader.schema(), reader.map(|batch| batch.map_err(failed)))
    } else {
        let reader = arrow_ipc::reader::StreamReader::try_new(content, None).map_err(failed)?;
        read_batches(path, reader.schema(), reader.map(|batch| batch.map_err(failed)))
    }
}

/// A stream of record batches that another library makes.
pub struct ArrowStream(RecordBatchStreamReader);

impl ArrowStream {
    /// Takes over a stream of the Arrow C stream interface and leaves a released one behind.
    ///
    /// # Safety
    /// The pointer must be that of a valid stream.
    pub unsafe fn from_raw(pointer: *mut FFI_ArrowArrayStream) -> Reason<Self> {
        // SAFETY: the caller guarantees a valid stream.
        let stream = unsafe { RecordBatchStreamReader::from_raw(pointer) };
        stream.map(ArrowStream).map_err(|e| format!("its columns cannot be read: {e}"))
    }
}

/// Reads all batches of a stream.
pub fn read_stream(name: PathBuf, stream: ArrowStream) -> Reason<Table> {
    let schema = stream.0.schema();
    read_batches(name, schema, stream.0.map(|batch| batch.map_err(|e| format!("a batch cannot be read: {e}"))))
}

/// A table of record batches.
fn read_batches(path: PathBuf, schema: SchemaRef, batches: impl Iterator<Item = Reason<RecordBatch>>) -> Reason<Table> {
    let mut columns: Vec<Option<Values>> = schema.fields().iter().map(|f| empty(f.data_type())).collect();
    for batch in batches {
        let batch = batch?;
        for (values, array) in columns.iter_mut().zip(batch.columns()) {
            if let Some(values) = values {
                append(values, array);
            }
        }
    }
    collected(path, schema, columns)
}

fn collected(path: PathBuf, schema: SchemaRef, columns: Vec<Option<Values>>) -> Reason<Table> {
    let (mut kept, mut skipped) = (Vec::new(), Vec::new());
    for (field, values) in schema.fields().iter().zip(columns) {
        match values {
            Some(values) => kept.push(Column::new(field.name(), values)),
            None => skipped.push((field.name().clone(), format!("holds values of type {}", field.data_type()))),
        }
    }
    Ok(Table { skipped, ..Table::of_columns(path, kept, true)? })
}

fn damaged(kind: &str, error: &dyn std::fmt::Display) -> String {
    format!("is {kind} file that cannot be read: {error}; is it truncated?")
}

/// What stores values of a type; `None` for nested and binary values.
fn empty(data_type: &DataType) -> Option<Values> {
    use DataType::{
        Boolean, Date32, Date64, Decimal128, Dictionary, Duration, LargeUtf8, Null, Time32, Time64, Timestamp, Utf8,
        Utf8View,
    };
    match data_type {
        Utf8 | LargeUtf8 | Utf8View | Boolean => Some(Values::Text(Text::default())),
        Date32 | Date64 | Timestamp(..) => Some(Values::Times(Vec::new())),
        Null | Decimal128(..) | Duration(_) | Time32(_) | Time64(_) => Some(Values::Numbers(Vec::new())),
        Dictionary(_, of) => empty(of),
        other if other.is_numeric() && !other.is_decimal() => Some(Values::Numbers(Vec::new())),
        _ => None,
    }
}

/// Adds the values of an array.
fn append(values: &mut Values, array: &dyn Array) {
    if let DataType::Dictionary(..) = array.data_type() {
        return append_dictionary(values, array);
    }
    match values {
        Values::Text(text) => append_text(text, array),
        Values::Numbers(numbers) | Values::Times(numbers) => append_numbers(numbers, array),
    }
}

fn append_dictionary(values: &mut Values, array: &dyn Array) {
    let dictionary = array.as_any_dictionary();
    let keys = if dictionary.values().is_empty() { Vec::new() } else { dictionary.normalized_keys() };
    let is_null = |i: usize| dictionary.keys().is_null(i) || dictionary.values().is_null(keys[i]);
    match values {
        Values::Text(text) => {
            let mut levels = Text::default();
            append_text(&mut levels, dictionary.values());
            // Levels are added in the order of the rows that have them.
            let mut codes = vec![None; levels.codes.len()];
            for i in 0..array.len() {
                let code = match is_null(i) {
                    true => Text::MISSING,
                    false => *codes[keys[i]].get_or_insert_with(|| {
                        levels.get(keys[i]).map_or(Text::MISSING, |level| text.levels.code(level))
                    }),
                };
                text.codes.push(code);
            }
        }
        Values::Numbers(numbers) | Values::Times(numbers) => {
            let mut levels = Vec::new();
            append_numbers(&mut levels, dictionary.values());
            numbers.extend((0..array.len()).map(|i| if is_null(i) { f64::NAN } else { levels[keys[i]] }));
        }
    }
}

fn append_text(text: &mut Text, array: &dyn Array) {
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().for_each(|v| text.push(v)),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().for_each(|v| text.push(v)),
        DataType::Utf8View => array.as_string_view().iter().for_each(|v| text.push(v)),
        DataType::Boolean => {
            array.as_boolean().iter().for_each(|v| text.push(v.map(|b| if b { "true" } else { "false" })));
        }
        _ => (0..array.len()).for_each(|_| text.push(None)),
    }
}

fn append_numbers(numbers: &mut Vec<f64>, array: &dyn Array) {
    /// Adds the values of a primitive array, each multiplied by a factor.
    macro_rules! add {
        ($t:ty, $factor:expr) => {{
            let array = array.as_primitive::<$t>();
            let factor: f64 = $factor;
            let number = |i: usize| if array.is_null(i) { f64::NAN } else { factor * array.value(i) as f64 };
            numbers.extend((0..array.len()).map(number))
        }};
    }
    use DataType::{
        Date32, Date64, Decimal128, Duration, Float16, Float32, Float64, Int8, Int16, Int32, Int64, Time32, Time64,
        Timestamp, UInt8, UInt16, UInt32, UInt64,
    };
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    match array.data_type() {
        Int8 => add!(Int8Type, 1.0),
        Int16 => add!(Int16Type, 1.0),
        Int32 => add!(Int32Type, 1.0),
        Int64 => add!(Int64Type, 1.0),
        UInt8 => add!(UInt8Type, 1.0),
        UInt16 => add!(UInt16Type, 1.0),
        UInt32 => add!(UInt32Type, 1.0),
        UInt64 => add!(UInt64Type, 1.0),
        Float16 => {
            let array = array.as_primitive::<Float16Type>();
            numbers.extend(array.iter().map(|x| x.map_or(f64::NAN, f64::from)));
        }
        Float32 => add!(Float32Type, 1.0),
        Float64 => add!(Float64Type, 1.0),
        Decimal128(_, scale) => add!(Decimal128Type, 10f64.powi(-i32::from(*scale))),
        Date32 => add!(Date32Type, 86_400.0),
        Date64 => add!(Date64Type, 1e-3),
        Timestamp(Second, _) => add!(TimestampSecondType, 1.0),
        Timestamp(Millisecond, _) => add!(TimestampMillisecondType, 1e-3),
        Timestamp(Microsecond, _) => add!(TimestampMicrosecondType, 1e-6),
        Timestamp(Nanosecond, _) => add!(TimestampNanosecondType, 1e-9),
        Time32(Second) => add!(Time32SecondType, 1.0),
        Time32(_) => add!(Time32MillisecondType, 1e-3),
        Time64(Microsecond) => add!(Time64MicrosecondType, 1e-6),
        Time64(_) => add!(Time64NanosecondType, 1e-9),
        Duration(Second) => add!(DurationSecondType, 1.0),
        Duration(Millisecond) => add!(DurationMillisecondType, 1e-3),
        Duration(Microsecond) => add!(DurationMicrosecondType, 1e-6),
        Duration(Nanosecond) => add!(DurationNanosecondType, 1e-9),
        _ => numbers.extend(std::iter::repeat_n(f64::NAN, array.len())),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{BooleanArray, Date32Array, DictionaryArray, Int64Array, ListArray};

    use super::*;

    fn batch() -> RecordBatch {
        let town: DictionaryArray<Int32Type> = [Some("Oslo"), None, Some("Rome")].into_iter().collect();
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)]), None, Some([None])]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("n", Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]))),
            ("x", Arc::new(Float64Array::from(vec![0.5, f64::NAN, 2.5]))),
            ("b", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None]))),
            ("day", Arc::new(Date32Array::from(vec![19_874, 0, 1]))),
            ("at", Arc::new(TimestampMillisecondArray::from(vec![Some(1_500), None, Some(0)]))),
            ("town", Arc::new(town)),
            ("name", Arc::new(StringArray::from(vec![Some("a"), None, Some("b")]))),
            ("lists", Arc::new(lists)),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap()
    }

    fn check(table: &Table) {
        assert_eq!(table.rows, 3);
        assert_eq!(table.columns.iter().map(Column::missing).collect::<Vec<_>>(), [1, 1, 1, 0, 1, 1, 1]);
        let Values::Times(days) = &table.columns[3].values else { panic!() };
        assert_eq!(days[0], 19_874.0 * 86_400.0);
        let Values::Text(town) = &table.columns[5].values else { panic!() };
        assert_eq!((town.get(0), town.get(2)), (Some("Oslo"), Some("Rome")));
        let Values::Text(truth) = &table.columns[2].values else { panic!() };
        assert_eq!((truth.get(0), truth.get(1)), (Some("true"), Some("false")));
        assert_eq!(table.skipped[0].0, "lists");
    }

    #[test]
    fn parquet_and_arrow_files_are_read() {
        let batch = batch();
        let mut parquet = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut parquet, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let table = Table::parse("t", &parquet).unwrap();
        check(&table);
        let written = Table::parse("t", &table.to_parquet()).unwrap();
        check(&Table { skipped: table.skipped.clone(), ..written });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        std::fs::write(&path, &parquet).unwrap();
        check(&Table::read(&path).unwrap());
        let mut file = Vec::new();
        let mut writer = arrow_ipc::writer::FileWriter::try_new(&mut file, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        drop(writer);
        check(&Table::parse("t", &file).unwrap());
        let mut stream = Vec::new();
        let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut stream, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        drop(writer);
        check(&Table::parse("t", &stream).unwrap());
        for (whole, kind) in [(parquet, "a Parquet"), (file, "an Arrow")] {
            for part in [whole.len() - 1, whole.len() / 2, 8] {
                let error = Table::parse("t", &whole[..part]).unwrap_err().to_string();
                assert!(error.starts_with(&format!("t: is {kind} file that cannot be read: ")), "{error}");
            }
        }
    }
}
