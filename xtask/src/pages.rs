//! HTML pages in a browser: Chromium lays them out on a phone, a tablet and a desk.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, command, read, run, target};

/// Widths of windows in pixels.
const WIDTHS: [u32; 3] = [390, 768, 1280];

/// Writes the pages of the example tables and samples, and looks at them.
pub fn check() -> Outcome {
    let Some(browser) = browser() else {
        eprintln!("Chromium is not installed and cannot be: pages are not looked at");
        return Ok(());
    };
    let folder = target().join("pages");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let setwise = target().join("debug/setwise").display().to_string();
    let pages = [
        ("compare", "compare examples/tables/april.csv examples/tables/may.csv"),
        ("periods", "compare examples/tables/april.csv --by week"),
        ("kl", "kl examples/samples/p.csv examples/samples/q.csv"),
    ];
    for (name, arguments) in pages {
        let page = folder.join(format!("{name}.html"));
        run(command(&format!("{setwise} {arguments} --report")).arg(&page))?;
        look(&browser, &page)?;
    }
    println!("pages and pictures: {}", folder.display());
    Ok(())
}

/// The program, which is installed first where continuous integration runs as root on Debian.
fn browser() -> Option<PathBuf> {
    let find = || {
        let folders = std::env::split_paths(&std::env::var_os("PATH")?).collect::<Vec<_>>();
        let names = ["chromium", "chromium-browser", "google-chrome"];
        names.iter().flat_map(|name| folders.iter().map(move |f| f.join(name))).find(|path| path.is_file())
    };
    find().or_else(|| {
        std::env::var_os("CI")?;
        let install = "apt-get install --yes --no-install-recommends chromium fonts-dejavu-core";
        let quiet = |line: &str| command(line).stdout(std::process::Stdio::null()).status().is_ok_and(|s| s.success());
        (quiet(install) || (quiet("apt-get update") && quiet(install))).then(find)?
    })
}

/// Takes a picture at each width, and fails where the page is wider than the window or shows nothing.
fn look(browser: &Path, page: &Path) -> Outcome {
    let name = page.file_stem().unwrap_or_default().to_string_lossy();
    for width in WIDTHS {
        let picture = page.with_file_name(format!("{name}-{width}.png"));
        run(chromium(browser)
            .arg(format!("--window-size={width},1600"))
            .arg(format!("--screenshot={}", picture.display()))
            .arg(page))?;
        if !picture.is_file() {
            return Err(format!("{}: Chromium takes no picture", page.display()));
        }
    }
    // Pages have no scripts: that of a frame around each measures it.
    let frame = page.with_file_name(format!("{name}-frame.html"));
    let quoted = read(page)?.replace('&', "&amp;").replace('"', "&quot;");
    let frames: String =
        WIDTHS.map(|w| format!("<iframe width=\"{w}\" height=\"800\" srcdoc=\"{quoted}\"></iframe>")).concat();
    let script = "<script>onload = () => { document.body.innerHTML = [...document.querySelectorAll('iframe')].map(f => { \
        const page = f.contentDocument, root = page.documentElement; \
        page.querySelectorAll('details').forEach(d => d.open = true); \
        return `width ${f.width} needs ${root.scrollWidth} tall ${root.scrollHeight > 800}`; }).join('; ') }</script>";
    std::fs::write(&frame, format!("<!DOCTYPE html><meta charset=\"utf-8\"><body style=\"margin:0\">{frames}{script}"))
        .map_err(|e| format!("{}: {e}", frame.display()))?;
    let dom = chromium(browser).args(["--window-size=3000,1200", "--dump-dom"]).arg(&frame).output();
    let dom = String::from_utf8_lossy(&dom.map_err(|e| format!("Chromium: {e}"))?.stdout).into_owned();
    for width in WIDTHS {
        let expected = format!("width {width} needs {width} tall true");
        if !dom.contains(&expected) {
            let measured = dom.rsplit("<body").next().unwrap_or_default();
            return Err(format!("{}: expected {expected:?}, measured {measured}", page.display()));
        }
    }
    Ok(())
}

fn chromium(browser: &Path) -> Command {
    let mut chromium = Command::new(browser);
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--log-level=3"]);
    chromium.stderr(std::process::Stdio::null());
    chromium
}
