//! Items that sets are made of: rows of one width, decoded once and held in memory.

/// Rows of one width. Bits and bytes stay what they are until they are put into a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Items {
    width: usize,
    values: Values,
}

#[derive(Clone, Debug, PartialEq)]
enum Values {
    /// Most significant bit first; each row begins with a byte of its own.
    Bits(Vec<u8>),
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

/// The eight bits of each byte as numbers: a look is faster than eight shifts.
static EIGHT: [[f32; 8]; 256] = {
    let mut table = [[0.0; 8]; 256];
    let mut i = 0;
    while i < 256 * 8 {
        table[i / 8][i % 8] = (((i / 8) >> (7 - i % 8)) & 1) as f32;
        i += 1;
    }
    table
};

impl Items {
    /// Rows of numbers.
    ///
    /// # Panics
    /// If they are no whole number of rows.
    pub fn floats(width: usize, values: Vec<f32>) -> Self {
        assert!(width > 0 && values.len().is_multiple_of(width), "whole rows");
        Items { width, values: Values::Floats(values) }
    }

    /// Rows of bytes, which stand for numbers from 0 to 1.
    ///
    /// # Panics
    /// If they are no whole number of rows.
    pub fn bytes(width: usize, values: Vec<u8>) -> Self {
        assert!(width > 0 && values.len().is_multiple_of(width), "whole rows");
        Items { width, values: Values::Bytes(values) }
    }

    /// Rows of bits, the most significant of a byte first; each row is a whole number of bytes.
    ///
    /// # Panics
    /// If they are no whole number of rows.
    pub fn bits(width: usize, values: Vec<u8>) -> Self {
        assert!(width > 0 && values.len().is_multiple_of(width.div_ceil(8)), "whole rows");
        Items { width, values: Values::Bits(values) }
    }

    /// Numbers in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::Bits(v) => v.len() / self.width.div_ceil(8),
            Values::Bytes(v) => v.len() / self.width,
            Values::Floats(v) => v.len() / self.width,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a row as numbers.
    ///
    /// ```
    /// let items = setwise_lab::datasets::Items::bytes(2, vec![0, 255, 51, 0]);
    /// let mut row = Vec::new();
    /// items.append(1, &mut row);
    /// assert_eq!(row, [0.2, 0.0]);
    /// ```
    ///
    /// # Panics
    /// If there is no such row.
    pub fn append(&self, item: usize, out: &mut Vec<f32>) {
        let row = item * self.width..(item + 1) * self.width;
        match &self.values {
            Values::Floats(v) => out.extend_from_slice(&v[row]),
            Values::Bytes(v) => out.extend(v[row].iter().map(|&b| f32::from(b) / 255.0)),
            Values::Bits(v) => {
                let bytes = self.width.div_ceil(8);
                let end = out.len() + self.width;
                for &byte in &v[item * bytes..(item + 1) * bytes] {
                    out.extend_from_slice(&EIGHT[byte as usize]);
                }
                out.truncate(end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_numbers_with_the_most_significant_first() {
        let items = Items::bits(10, vec![0b1000_0001, 0b0100_0000, 0, 0b1111_1111]);
        assert_eq!(items.len(), 2);
        let mut rows = Vec::new();
        (0..2).for_each(|i| items.append(i, &mut rows));
        assert_eq!(rows[..10], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
        assert_eq!(rows[10..], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    }
}
