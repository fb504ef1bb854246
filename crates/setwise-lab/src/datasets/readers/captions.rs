//! Images with captions: Flickr8k, Flickr30k and MS-COCO.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::content::{bad, lines, read};
use crate::Result;

/// Images and their captions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Captioned {
    /// File names of the images.
    pub images: Vec<String>,
    /// The captions of each.
    pub captions: Vec<Vec<String>>,
}

impl Captioned {
    /// Reads the captions of Flickr8k or Flickr30k. Images are in the order of their first captions.
    ///
    /// Formats of a line:
    ///
    /// * `image,caption` as CSV,
    /// * `image#number`, tab, caption (`Flickr8k.token.txt`, `results_20130124.token`),
    /// * `image| number| caption` (`results.csv`).
    pub fn read_flickr(path: &Path) -> Result<Self> {
        let mut found = Captioned::default();
        let mut indices = HashMap::new();
        let mut form = None;
        lines(path, |number, line| {
            if line.trim().is_empty() {
                return Ok(());
            }
            let Some(form) = form else {
                let head = ["image,caption", "image_name| comment_number| comment"].contains(&line.trim());
                let this =
                    Form::of(line).ok_or_else(|| bad(path, format!("line {number}: {line:?} is not a caption")))?;
                form = Some(this);
                if !head {
                    found.push(&mut indices, this.split(line).ok_or_else(|| not_a_caption(path, number, line))?);
                }
                return Ok(());
            };
            found.push(&mut indices, form.split(line).ok_or_else(|| not_a_caption(path, number, line))?);
            Ok(())
        })?;
        if found.images.is_empty() {
            return Err(bad(path, "has no captions"));
        }
        Ok(found)
    }

    /// Reads annotations of MS-COCO (`captions_train2017.json`) in the order of the file.
    ///
    /// Images without captions are dropped.
    pub fn read_coco(path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Annotations {
            images: Vec<Image>,
            annotations: Vec<Annotation>,
        }
        #[derive(Deserialize)]
        struct Image {
            id: u64,
            file_name: String,
        }
        #[derive(Deserialize)]
        struct Annotation {
            image_id: u64,
            caption: String,
        }
        let file: Annotations =
            serde_json::from_slice(&read(path)?).map_err(|e| bad(path, format!("is not a file of captions: {e}")))?;
        let indices: HashMap<u64, usize> = file.images.iter().enumerate().map(|(i, image)| (image.id, i)).collect();
        let mut captions = vec![Vec::new(); file.images.len()];
        for (i, annotation) in file.annotations.into_iter().enumerate() {
            let Some(&index) = indices.get(&annotation.image_id) else {
                return Err(bad(
                    path,
                    format!("annotation {i} is about image {}, which does not exist", annotation.image_id),
                ));
            };
            captions[index].push(annotation.caption.trim().to_owned());
        }
        let all = file.images.into_iter().map(|image| image.file_name).zip(captions);
        let (images, captions) = all.filter(|(_, captions)| !captions.is_empty()).unzip();
        Ok(Captioned { images, captions })
    }

    /// Appends the images of another corpus.
    pub fn extend(&mut self, other: Captioned) {
        self.images.extend(other.images);
        self.captions.extend(other.captions);
    }

    fn push(&mut self, indices: &mut HashMap<String, usize>, (image, caption): (String, String)) {
        let index = *indices.entry(image.clone()).or_insert_with(|| {
            self.images.push(image);
            self.captions.push(Vec::new());
            self.images.len() - 1
        });
        self.captions[index].push(caption);
    }
}

fn not_a_caption(path: &Path, number: usize, line: &str) -> crate::Error {
    bad(path, format!("line {number}: {line:?} is not an image and its caption"))
}

/// The format of a line with an image and its caption.
#[derive(Clone, Copy)]
enum Form {
    Csv,
    Numbered,
    Bars,
}

impl Form {
    fn of(line: &str) -> Option<Self> {
        match line {
            _ if line.contains("#") && line.contains('\t') => Some(Form::Numbered),
            _ if line.matches('|').count() >= 2 => Some(Form::Bars),
            _ if line.contains(',') => Some(Form::Csv),
            _ => None,
        }
    }

    fn split(self, line: &str) -> Option<(String, String)> {
        let (image, caption) = match self {
            Form::Numbered => {
                let (image, caption) = line.split_once('\t')?;
                (image.split_once('#')?.0, caption)
            }
            Form::Bars => {
                let (image, rest) = line.split_once('|')?;
                (image, rest.split_once('|')?.1)
            }
            Form::Csv => line.split_once(',')?,
        };
        let (image, caption) = (image.trim(), caption.trim());
        // CSV quotes captions with commas and doubles quotes inside.
        let caption = match caption.strip_prefix('"').and_then(|c| c.strip_suffix('"')) {
            Some(inner) if matches!(self, Form::Csv) => inner.replace("\"\"", "\""),
            _ => caption.to_owned(),
        };
        (!image.is_empty() && !caption.is_empty()).then(|| (image.to_owned(), caption))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(content: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("captions");
        std::fs::write(&path, content).unwrap();
        (dir, path)
    }

    #[test]
    fn captions_of_flickr_are_read_in_every_format() {
        for content in [
            "image,caption\na.jpg,A dog .\nb.jpg,\"A \"\"big\"\" cat, asleep\"\na.jpg,A puppy\n",
            "a.jpg#0\tA dog .\nb.jpg#0\tA \"big\" cat, asleep\na.jpg#1\tA puppy\n",
            "image_name| comment_number| comment\na.jpg| 0| A dog .\nb.jpg| 0| A \"big\" cat, asleep\na.jpg| 1| A puppy\n",
        ] {
            let (_dir, path) = written(content);
            let found = Captioned::read_flickr(&path).unwrap();
            assert_eq!(found.images, ["a.jpg", "b.jpg"], "{content}");
            assert_eq!(found.captions, [vec!["A dog .", "A puppy"], vec!["A \"big\" cat, asleep"]], "{content}");
        }
        let (_dir, path) = written("a.jpg#0\tA dog\nb.jpg and nothing\n");
        assert!(Captioned::read_flickr(&path).unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn captions_of_coco_are_read_with_their_images() {
        let json = r#"{"info": {}, "images": [{"id": 9, "file_name": "b.jpg", "height": 4}, {"id": 5, "file_name": "a.jpg"}],
            "annotations": [{"id": 1, "image_id": 5, "caption": "One. "}, {"id": 2, "image_id": 5, "caption": "Two."}]}"#;
        let (_dir, path) = written(json);
        let found = Captioned::read_coco(&path).unwrap();
        assert_eq!(
            found,
            Captioned { images: vec!["a.jpg".into()], captions: vec![vec!["One.".into(), "Two.".into()]] }
        );
        let (_dir, path) = written(&json.replace("\"image_id\": 5", "\"image_id\": 6"));
        assert!(Captioned::read_coco(&path).unwrap_err().to_string().contains("annotation 0 is about image 6"));
        let (_dir, path) = written(&json[..100]);
        assert!(Captioned::read_coco(&path).unwrap_err().to_string().contains("line 1"));
    }
}
