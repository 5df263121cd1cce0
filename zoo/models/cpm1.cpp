// SPDX-License-Identifier: Apache-2.0
// CPM-1 (arXiv:2012.00413) as in ModelCenter.

#include "tessera/zoo/models/cpm_like.h"
#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

ModelFamily cpm1_family() {
  return cpm_family("cpm1", "CPM1", [](const ConfigFields& fields) {
    return cpm_config(fields);
  });
}

} // namespace tessera::zoo
