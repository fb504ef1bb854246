//! Errors of the engine.

/// Errors of the engine; each carries the sizes that do not match.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The batch has another number of sets than the program.
    #[error("the program takes {expected} sets, the batch has {found}")]
    SetCount {
        /// Sets of the program.
        expected: usize,
        /// Sets of the batch.
        found: usize,
    },
    /// A set's rows have another width than the program expects.
    #[error("set {set} has rows of width {found}, the model takes {expected}")]
    SetWidth {
        /// Index of the set.
        set: usize,
        /// Width of the program's input.
        expected: usize,
        /// Width of the batch's rows.
        found: usize,
    },
    /// In a dimension-equivariant program all sets of a batch must share one width.
    #[error(
        "set {set} has rows of width {found}, not {expected} as set 0; this model needs the same dimensions in all sets"
    )]
    UnequalWidths {
        /// Index of the set.
        set: usize,
        /// Width that follows from set 0.
        expected: usize,
        /// Width of this set.
        found: usize,
    },
    /// A set of an example has no elements.
    #[error("set {set} of example {example} is empty")]
    EmptySet {
        /// Index of the set.
        set: usize,
        /// Index of the example.
        example: usize,
    },
    /// Offsets that do not rise from zero to the number of rows.
    #[error("offsets of set {set} do not describe its {rows} rows: {reason}")]
    Offsets {
        /// Index of the set.
        set: usize,
        /// Rows the data has.
        rows: usize,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// The batch has no examples.
    #[error("the batch has no examples")]
    EmptyBatch,
    /// AMX is requested but not available.
    #[error("AMX is not available: the processor lacks AMX-BF16 or the system does not permit it; use f32")]
    NoAmx,
    /// The working memory exceeds the address space or the machine.
    #[error(
        "this batch needs {bytes} bytes of working memory, more than this machine has; use smaller batches or sets"
    )]
    TooLarge {
        /// Bytes needed (saturating).
        bytes: u64,
    },
    /// A buffer of the wrong length.
    #[error("{what} has {found} values, expected {expected}")]
    Length {
        /// Name of the buffer.
        what: &'static str,
        /// Values expected.
        expected: usize,
        /// Values found.
        found: usize,
    },
    /// Predictions that are no full rows of logits.
    #[error("{predictions} predicted numbers are not divisible into rows of {classes} classes")]
    Classes {
        /// Classes of the loss.
        classes: usize,
        /// Numbers predicted.
        predictions: usize,
    },
    /// A target that is not the index of a class.
    #[error("target {index} is {found}, not the index of one of {classes} classes")]
    NoClass {
        /// Index of the target.
        index: usize,
        /// Its value.
        found: f64,
        /// Number of classes.
        classes: usize,
    },
    /// The GPU cannot be used.
    #[error("CUDA: {0}")]
    Device(String),
    /// The GPU's memory is too small.
    #[error(
        "CUDA: {what} needs {wanted} bytes of device memory, {free} are free; \
         lower the batch size, the set sizes or the model's widths"
    )]
    DeviceMemory {
        /// Purpose of the memory.
        what: &'static str,
        /// Bytes needed.
        wanted: u64,
        /// Bytes free.
        free: u64,
    },
}
