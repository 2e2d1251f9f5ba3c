/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Plans and meshes as JSON. */
#include "base/base.h"

#include "topo/json.h"

static json_t *cores_json(const tsri_topo *t, const tsri_topo_mapping *mapping,
                          const tsri_topo_place *p)
{
    json_t *list = json_array();

    for (int i = 0; i < p->core_count; i++) {
        const tsri_topo_core *c = &t->cores[mapping->cores[p->core_first + i]];

        for (int k = 0; k < c->pu_count; k++) {
            (void)json_array_append_new(list, json_integer(t->pus[c->pu_first + k]));
        }
    }
    return list;
}

static json_t *nics_json(const tsri_topo *t, const tsri_topo_mapping *mapping,
                         const tsri_topo_place *p)
{
    json_t *list = json_array();

    for (int i = 0; i < p->nic_count; i++) {
        const tsri_topo_nic *n = &t->nics[mapping->nics[p->nic_first + i]];

        (void)json_array_append_new(list, json_string(n->at.name));
    }
    return list;
}

static json_t *place_json(const tsri_topo *t, const tsri_topo_mapping *mapping, int rank)
{
    const tsri_topo_place *p = &mapping->places[rank];
    json_t *tree = json_pack("{s:i, s:i, s:i, s:o}", "local_rank", rank, "island", p->island,
                             "numa", p->numa, "threads", cores_json(t, mapping, p));

    if (p->gpu >= 0) {
        (void)json_object_set_new(tree, "gpu", json_integer(p->gpu));
        (void)json_object_set_new(tree, "device", json_integer(t->gpus[p->gpu].device));
    }
    if (p->nic >= 0) {
        (void)json_object_set_new(tree, "nic", json_string(t->nics[p->nic].at.name));
        (void)json_object_set_new(tree, "nics", nics_json(t, mapping, p));
        (void)json_object_set_new(tree, "nic_near", json_string(tsri_topo_near_text(p->nic_near)));
    }
    return tree;
}

tsr_status tsri_topo_mapping_to_json(const tsri_topo *t, const tsri_topo_mapping *mapping,
                                     json_t **out)
{
    json_t *places = json_array();
    json_t *notes = json_array();

    for (int i = 0; i < mapping->place_count; i++) {
        (void)json_array_append_new(places, place_json(t, mapping, i));
    }
    for (int i = 0; i < mapping->notes.count; i++) {
        const tsri_topo_note *n = &mapping->notes.at[i];

        (void)json_array_append_new(notes, json_pack("{s:s, s:b, s:s}", "subject", n->subject,
                                                     "warning", (int)n->warning, "text", n->text));
    }
    *out = json_pack("{s:s, s:i, s:o, s:o}", "islands_by", tsri_topo_rule_name(mapping->rule),
                     "islands", mapping->island_count, "ranks", places, "reasons", notes);
    return *out != NULL ? TSR_OK : TSR_RAISE(TSR_ERR_NOMEM, "no memory for the plan");
}

tsr_status tsri_topo_mesh_to_json(const tsri_topo_mesh *mesh, json_t **out)
{
    json_t *axes = json_array();

    for (int i = 0; i < mesh->axis_count; i++) {
        const tsri_topo_axis *a = &mesh->axes[i];
        json_t *ranks = json_array();
        json_t *tree = NULL;

        for (int k = 0; k < a->size; k++) {
            (void)json_array_append_new(ranks, json_integer(a->ranks[k]));
        }
        tree = json_pack("{s:s, s:i, s:i, s:o, s:i, s:s, s:s}", "axis", a->name, "size", a->size,
                         "groups", a->group_count, "first_group", ranks, "hosts", a->hosts, "over",
                         a->over, "reason", a->reason);
        if (tree != NULL && a->gb_s > 0.0) {
            (void)json_object_set_new(tree, "gb_s", json_real(a->gb_s));
        }
        (void)json_array_append_new(axes, tree);
    }
    *out = json_pack("{s:i, s:i, s:o}", "hosts", mesh->nodes, "ranks_per_host", mesh->local, "axes",
                     axes);
    return *out != NULL ? TSR_OK : TSR_RAISE(TSR_ERR_NOMEM, "no memory for the mesh");
}
