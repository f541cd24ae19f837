//! KubeVirt's schema of a VirtualMachine, which `cargo xtask install` fetches, asked of files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Debian's, which has the modules that the installation brings.
const PYTHON: &str = "/usr/bin/python3";

/// Checks files against the schema as a cluster does with strict validation: an object takes no fields but the schema's.
/// Prints the complaints about each; the schema takes longer to read than all files.
const CHECK: &str = r##"
import json, sys, jsonschema, yaml
definitions = json.load(open(sys.argv[1]))["definitions"]
def strict(schema):
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str):
        return strict(definitions[schema["$ref"].rsplit("/", 1)[1]])
    made = {key: strict(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        made["additionalProperties"] = False
    return made
schema = strict(definitions["kubevirt.io/v1/VirtualMachine"])
# Kubernetes gives its objects these without saying so in every schema.
schema["additionalProperties"] = False
schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
jsonschema.Draft7Validator.check_schema(schema)
def complaints(path):
    documents = list(yaml.safe_load_all(open(path)))
    assert len(documents) == 1, "one document"
    wrong = list(jsonschema.Draft7Validator(schema).iter_errors(documents[0]))
    if wrong:
        return ["/".join(map(str, it.path)) + ": " + it.message for it in wrong]
    kind, version = documents[0]["kind"], documents[0]["apiVersion"]
    assert (kind, version) == ("VirtualMachine", "kubevirt.io/v1"), (kind, version)
    return []
print(json.dumps([complaints(path) for path in sys.argv[2:]]))
"##;

fn schema() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/schemas/kubevirt.json")
}

/// Why the schema cannot be asked here, if it cannot.
#[must_use]
pub fn missing() -> Option<String> {
    if !schema().is_file() {
        return Some("KubeVirt's schema is not there: cargo xtask install fetches it".to_owned());
    }
    let modules = Command::new(PYTHON).args(["-c", "import jsonschema, yaml"]).output();
    let found = modules.is_ok_and(|output| output.status.success());
    (!found).then(|| format!("{PYTHON} has no jsonschema or yaml"))
}

/// What the schema has against each file; nothing if it takes the file.
///
/// # Errors
/// If it cannot be asked, or has nothing to say of a file.
pub fn complaints(paths: &[PathBuf]) -> Result<Vec<Vec<String>>> {
    let mut python = Command::new(PYTHON);
    let output = python.args(["-c", CHECK]).arg(schema()).args(paths).output().context(PYTHON)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    let lists: Vec<Vec<String>> = serde_json::from_slice(&output.stdout).context("what is said")?;
    ensure!(lists.len() == paths.len(), "{} files, {lists:?}", paths.len());
    Ok(lists)
}
