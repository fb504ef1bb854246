//! Linker arguments of an extension module, whose Python symbols the interpreter resolves.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
