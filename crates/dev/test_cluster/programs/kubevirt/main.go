// The programs of KubeVirt that the test bench runs, in one file: the name of the link that it is
// called by says which. `kubevirt-objects` prints, as a list in JSON, what KubeVirt's operator would
// give the API server: the types of objects, and which of them virt-api is asked about.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"kubevirt.io/client-go/log"
	"kubevirt.io/kubevirt/pkg/service"
	api "kubevirt.io/kubevirt/pkg/virt-api"
	"kubevirt.io/kubevirt/pkg/virt-controller/watch"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"

	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const namespace = "kubevirt"

func runAPI() {
	log.InitializeLogging("virt-api")
	app := api.NewVirtApi()
	service.Setup(app)
	app.Execute()
}

func printObjects() {
	makers := []func() (*definitions.CustomResourceDefinition, error){
		components.NewKubeVirtCrd,
		components.NewMigrationPolicyCrd,
		components.NewPresetCrd,
		components.NewReplicaSetCrd,
		components.NewVirtualMachineCloneCrd,
		components.NewVirtualMachineClusterInstancetypeCrd,
		components.NewVirtualMachineClusterPreferenceCrd,
		components.NewVirtualMachineCrd,
		components.NewVirtualMachineExportCrd,
		components.NewVirtualMachineInstanceCrd,
		components.NewVirtualMachineInstanceMigrationCrd,
		components.NewVirtualMachineInstancetypeCrd,
		components.NewVirtualMachinePoolCrd,
		components.NewVirtualMachinePreferenceCrd,
		components.NewVirtualMachineRestoreCrd,
		components.NewVirtualMachineSnapshotContentCrd,
		components.NewVirtualMachineSnapshotCrd,
	}
	objects := []any{
		components.NewVirtAPIMutatingWebhookConfiguration(namespace),
		components.NewVirtAPIValidatingWebhookConfiguration(namespace),
	}
	for _, maker := range makers {
		object, err := maker()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		objects = append(objects, object)
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": objects}
	if err := json.NewEncoder(os.Stdout).Encode(list); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// One at most is run: they share the global table of options.
var programs = map[string]func(){
	"kubevirt-objects": printObjects,
	"virt-api":         runAPI,
	"virt-controller":  watch.Execute,
}

func main() {
	name := filepath.Base(os.Args[0])
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "no program %q: call this file by a link of the program's name\n", name)
		os.Exit(2)
	}
	program()
}
