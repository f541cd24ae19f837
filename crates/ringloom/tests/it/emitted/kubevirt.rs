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

/// Checks a file against the schema as a cluster does with strict validation: an object takes no fields but the schema's.
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
documents = list(yaml.safe_load_all(open(sys.argv[2])))
assert len(documents) == 1, "one document"
wrong = list(jsonschema.Draft7Validator(schema).iter_errors(documents[0]))
if wrong:
    sys.exit("\n".join("/".join(map(str, it.path)) + ": " + it.message for it in wrong))
kind, version = documents[0]["kind"], documents[0]["apiVersion"]
assert (kind, version) == ("VirtualMachine", "kubevirt.io/v1"), (kind, version)
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

/// Whether the schema takes it, and what Python says.
pub(super) fn checked(path: &Path) -> Result<(bool, String)> {
    let output = run(Command::new(PYTHON).args(["-c", CHECK]).arg(schema()).arg(path))?;
    Ok((output.status.success(), said(&output)))
}

#[test]
fn the_machines_pass_kubevirts_schema() {
    with_schema(|bench| {
        for (device, iothreads) in
            [("virtio-blk", "none"), ("virtio-blk", "4"), ("virtio-scsi", "none"), ("ide", "none")]
        {
            let wanted = Wanted {
                device: device.parse().context("a device")?,
                pin_iothreads: "1".parse().ok(),
                ..wanted(bench, Backend::QemuIothreads, iothreads)?
            };
            let path = written(bench, &wanted, "kubevirt.yaml")?;
            let (taken, said) = checked(&path)?;
            ensure!(taken, "{device} {iothreads}: {said}: {}", std::fs::read_to_string(&path)?);
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
        for (from, to, complaint) in [
            ("supplementalPoolThreadCount: 4", "count: 4", "'count' was unexpected"),
            ("supplementalPoolThreadCount: 4", "supplementalPoolThreadCount: x", "not of type"),
            ("ioThreadsPolicy", "iothreadsPolicy", "'iothreadsPolicy' was unexpected"),
            ("blockMultiQueue: true", "blockMultiQueue: 4", "not of type 'boolean'"),
            ("cache: none", "io_uring: true", "'io_uring' was unexpected"),
            ("        memory:\n          guest: 4096Mi", "        memory: 4Gi", "not of type"),
            ("spec:\n  runStrategy", "status:\n  runStrategy", "'spec' is a required property"),
        ] {
            ensure!(right.contains(from), "{from} is not in {right}");
            std::fs::write(&path, right.replacen(from, to, 1))?;
            let (taken, said) = checked(&path)?;
            ensure!(!taken && said.contains(complaint), "with {to}: {said}");
        }
        Ok(())
    });
}
