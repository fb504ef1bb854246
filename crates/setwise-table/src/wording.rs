//! Names and values in messages.

/// Most characters of a value or name in a message.
pub const MAX_SHOWN: usize = 40;

/// Text of at most `max_chars` characters; an ellipsis stands for the rest.
///
/// ```
/// use setwise_table::wording::truncated;
///
/// assert_eq!(truncated("äöüß", 4), "äöüß");
/// assert_eq!(truncated("äöüßx", 4), "äöü…");
/// ```
pub fn truncated(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max_chars.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Names in quotes, the first ones of many.
///
/// ```
/// use setwise_table::wording::listed;
///
/// assert_eq!(listed(&["a", "b"]), "\"a\", \"b\"");
/// ```
pub fn listed(names: &[impl AsRef<str>]) -> String {
    const MAX_LISTED: usize = 12;
    let more = names.len().saturating_sub(MAX_LISTED);
    let first: Vec<String> = names.iter().take(MAX_LISTED).map(|name| format!("{:?}", name.as_ref())).collect();
    let first = first.join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}
