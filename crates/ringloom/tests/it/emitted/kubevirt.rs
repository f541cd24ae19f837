//! `kubevirt.yaml` passes the schema of KubeVirt's VirtualMachine, which `cargo xtask install` fetches.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::process::Bench;
use testkit::report::skipped;
use tuner::emit::{Backend, Wanted};

use super::{run, said, wanted, written};

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
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/schemas/kubevirt.json")
}

pub(super) fn missing() -> Option<String> {
    if !schema().is_file() {
        return Some("KubeVirt's schema is not there: cargo xtask install fetches it".to_owned());
    }
    let modules = Command::new(PYTHON).args(["-c", "import jsonschema, yaml"]).output();
    let found = modules.is_ok_and(|output| output.status.success());
    (!found).then(|| format!("{PYTHON} has no jsonschema or yaml"))
}

fn with_schema(behaviour: impl FnOnce(&Bench) -> Result<()>) {
    if let Some(reason) = missing() {
        skipped(&reason);
    } else if let Err(error) = Bench::new().and_then(|bench| behaviour(&bench)) {
        panic!("{error:#}");
    }
}

/// What the schema has against each file; nothing if it takes the file.
pub(super) fn complaints(paths: &[PathBuf]) -> Result<Vec<Vec<String>>> {
    let output = run(Command::new(PYTHON).args(["-c", CHECK]).arg(schema()).args(paths))?;
    ensure!(output.status.success(), "{}", said(&output));
    let lists: Vec<Vec<String>> = serde_json::from_slice(&output.stdout).context("what is said")?;
    ensure!(lists.len() == paths.len(), "{} files, {lists:?}", paths.len());
    Ok(lists)
}

#[test]
fn the_machines_pass_kubevirts_schema() {
    with_schema(|bench| {
        let machines =
            [("virtio-blk", "none"), ("virtio-blk", "4"), ("virtio-scsi", "none"), ("ide", "none")];
        let mut paths = Vec::new();
        for (device, iothreads) in machines {
            let wanted = Wanted {
                device: device.parse().context("a device")?,
                pin_iothreads: "1".parse().ok(),
                ..wanted(bench, Backend::QemuIothreads, iothreads)?
            };
            let path = bench.path(&format!("{device}-{iothreads}.yaml"));
            std::fs::rename(written(bench, &wanted, "kubevirt.yaml")?, &path)?;
            paths.push(path);
        }
        for (path, complaints) in paths.iter().zip(complaints(&paths)?) {
            let text = || std::fs::read_to_string(path).unwrap_or_default();
            ensure!(complaints.is_empty(), "{}: {complaints:?}: {}", path.display(), text());
        }
        Ok(())
    });
}

#[test]
fn the_schema_finds_unknown_fields_and_wrong_values() {
    with_schema(|bench| {
        let wanted = wanted(bench, Backend::QemuIothreads, "4")?;
        let path = written(bench, &wanted, "kubevirt.yaml")?;
        let right = std::fs::read_to_string(&path)?;
        let mistakes = [
            ("supplementalPoolThreadCount: 4", "count: 4", "'count' was unexpected"),
            ("supplementalPoolThreadCount: 4", "supplementalPoolThreadCount: x", "not of type"),
            ("ioThreadsPolicy", "iothreadsPolicy", "'iothreadsPolicy' was unexpected"),
            ("blockMultiQueue: true", "blockMultiQueue: 4", "not of type 'boolean'"),
            ("cache: none", "io_uring: true", "'io_uring' was unexpected"),
            ("        memory:\n          guest: 4096Mi", "        memory: 4Gi", "not of type"),
            ("spec:\n  runStrategy", "status:\n  runStrategy", "'spec' is a required property"),
        ];
        let mut paths = Vec::new();
        for (number, (from, to, _)) in mistakes.iter().enumerate() {
            ensure!(right.contains(from), "{from} is not in {right}");
            let path = bench.path(&format!("{number}.yaml"));
            std::fs::write(&path, right.replacen(from, to, 1))?;
            paths.push(path);
        }
        for ((_, to, complaint), said) in mistakes.iter().zip(complaints(&paths)?) {
            ensure!(said.iter().any(|it| it.contains(complaint)), "with {to}: {said:?}");
        }
        Ok(())
    });
}
