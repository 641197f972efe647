// The kernels of aie_kernels/ by name, as they declare themselves.
#pragma once

#include <string_view>
#include <vector>

#include "arch/geometry.h"
#include "kernels/declaration.h"

namespace npu::kernels {

// Null if a generation has no kernel of that name.
const Declaration* find_declaration(std::string_view name, arch::Generation generation);

std::vector<const Declaration*> declarations(arch::Generation generation);

}  // namespace npu::kernels
