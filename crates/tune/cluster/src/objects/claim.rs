//! Claims, which stay for the whole run: what was written to them is measured by all treatments.

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::Names;
use crate::job::{ClaimStorage, Placement};

/// The claim of one worker.
pub(crate) fn claim(
    names: &Names,
    owner: &OwnerReference,
    storage: &ClaimStorage,
    placement: Placement,
    worker: u16,
) -> PersistentVolumeClaim {
    let name = names.claim(&storage.name, placement, worker);
    let requests = [("storage".to_owned(), Quantity(storage.bytes.to_string()))].into();
    PersistentVolumeClaim {
        metadata: names.metadata(name, Some(owner)),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(storage.access_modes.iter().map(|it| (*it).to_owned()).collect()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(requests),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: storage.storage_class_name.clone(),
            volume_mode: Some(storage.volume_mode.name().to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}
