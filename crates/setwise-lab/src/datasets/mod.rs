//! Data sets: their files, their rows in memory, and tasks that pick examples from them.
//!
//! * [`readers`]: file formats; [`DataFolder`], [`DataSet`]: locations of data sets.
//! * [`Items`]: rows in memory; [`Classes`]: items grouped by class and split.
//! * [`Picker`]: picks one example. Pickers are [`Alignment`], [`Counting`] and [`SameClass`].
//! * [`Picked`]: a batch of indices.

mod alignment;
mod classes;
mod corpora;
mod counting;
mod folder;
mod images;
mod items;
mod pick;
pub mod readers;
mod same_class;

pub use alignment::{Alignment, Entry};
pub use classes::Classes;
pub use corpora::{CaptionFeatures, caption_alignment, word_alignment};
pub use counting::Counting;
#[cfg(test)]
pub(crate) use folder::real_data;
pub use folder::{DATA_VARIABLE, DataFolder, DataSet};
pub use images::{MIXED_SIDE, MNIST_SIDE, mixed_images, mnist_counting, omniglot_counting};
pub use items::Items;
pub use pick::{Picked, Picker};
pub use same_class::SameClass;
