// npu._npu.arch: geometry, register addresses and BD encoding. BDs are dicts whose keys are the
// members of arch::Bd; a key that does not exist is an error, a missing one keeps its default.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arch/bd.h"
#include "arch/switch_ports.h"
#include "bindings.h"
#include "error.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using arch::TileKind;

TileKind tile_kind(const std::string& name) {
  if (name == "shim") return TileKind::kShim;
  if (name == "mem") return TileKind::kMem;
  if (name == "core") return TileKind::kCore;
  fail(ErrorKind::kArgument, "[arch] unknown tile kind \"%s\"; use \"shim\", \"mem\" or \"core\"",
       name.c_str());
}

arch::Direction direction_of(const std::string& name) {
  if (name == "s2mm") return arch::Direction::kS2MM;
  if (name == "mm2s") return arch::Direction::kMM2S;
  fail(ErrorKind::kArgument, "[arch] unknown direction \"%s\"; use \"s2mm\" or \"mm2s\"",
       name.c_str());
}

// Any Python or NumPy integer as T; the C++ core checks the register widths.
template <typename T>
T integer(nb::handle value, const std::string& name) {
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    fail(ErrorKind::kDtype, "[encode_bd] %s must be an integer, found %s", name.c_str(),
         Py_TYPE(value.ptr())->tp_name);
  }
  int overflow = 0;
  const long long wide = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  bool fits = overflow == 0;
  if constexpr (std::is_signed_v<T>) {
    fits = fits && wide >= std::numeric_limits<T>::min() && wide <= std::numeric_limits<T>::max();
  } else {
    fits =
        fits && wide >= 0 && static_cast<unsigned long long>(wide) <= std::numeric_limits<T>::max();
  }
  if (!fits) {
    fail(ErrorKind::kArgument, "[encode_bd] %s = %s does not fit its field", name.c_str(),
         nb::cast<std::string>(nb::str(index)).c_str());
  }
  return static_cast<T>(wide);
}

// Visits every member of a Bd with its name: one list for both directions.
template <typename Visitor>
void visit(Visitor&& v, arch::Bd& bd) {
  v("base", bd.base);
  v("length", bd.length);
  v("step", bd.step);
  v("wrap", bd.wrap);
  v("pad_before", bd.pad_before);
  v("pad_after", bd.pad_after);
  v("iteration_step", bd.iteration_step);
  v("iteration_wrap", bd.iteration_wrap);
  v("iteration_current", bd.iteration_current);
  v("packet_enable", bd.packet_enable);
  v("packet_id", bd.packet_id);
  v("packet_type", bd.packet_type);
  v("out_of_order_id", bd.out_of_order_id);
  v("compression", bd.compression);
  v("tlast_suppress", bd.tlast_suppress);
  v("use_next", bd.use_next);
  v("next_bd", bd.next_bd);
  v("valid", bd.valid);
  v("acquire_enable", bd.acquire_enable);
  v("acquire_value", bd.acquire_value);
  v("acquire_id", bd.acquire_id);
  v("release_value", bd.release_value);
  v("release_id", bd.release_id);
  v("burst", bd.burst);
  v("axcache", bd.axcache);
  v("axqos", bd.axqos);
  v("smid", bd.smid);
  v("secure", bd.secure);
}

// Takes members out of a dict.
struct FromDict {
  const nb::dict& fields;
  std::set<std::string> known;

  nb::object find(const char* name) {
    known.insert(name);
    return fields.contains(name) ? nb::object(fields[name]) : nb::object();
  }
  template <typename T>
  void operator()(const char* name, T& member) {
    if (nb::object value = find(name); value.is_valid()) member = integer<T>(value, name);
  }
  void operator()(const char* name, bool& member) {
    nb::object value = find(name);
    if (!value.is_valid()) return;
    const int truth = integer<int>(value, name);
    if (truth != 0 && truth != 1) {
      fail(ErrorKind::kArgument, "[encode_bd] %s = %d; use True or False", name, truth);
    }
    member = truth == 1;
  }
  template <size_t N>
  void operator()(const char* name, std::array<uint32_t, N>& member) {
    nb::object value = find(name);
    if (!value.is_valid()) return;
    if (!nb::isinstance<nb::sequence>(value) || nb::isinstance<nb::str>(value)) {
      fail(ErrorKind::kDtype, "[encode_bd] %s must be a sequence of integers", name);
    }
    const size_t size = nb::len(value);
    if (size > N) {
      fail(ErrorKind::kArgument, "[encode_bd] %s has %zu entries, at most %zu fit", name, size, N);
    }
    for (size_t i = 0; i < size; ++i) {
      member[i] = integer<uint32_t>(nb::object(value[i]), strf("%s[%zu]", name, i));
    }
  }
};

struct ToDict {
  nb::dict fields;
  template <typename T>
  void operator()(const char* name, T& member) {
    fields[name] = member;
  }
  template <size_t N>
  void operator()(const char* name, std::array<uint32_t, N>& member) {
    nb::list values;
    for (const uint32_t value : member) values.append(value);
    fields[name] = values;
  }
};

std::vector<uint32_t> encode_bd(const std::string& kind, const nb::dict& fields) {
  arch::Bd bd;
  FromDict take{fields, {}};
  visit(take, bd);
  for (auto [key, value] : fields) {
    const std::string name = nb::cast<std::string>(nb::str(key));
    if (take.known.count(name) == 0) {
      fail(ErrorKind::kArgument, "[encode_bd] a BD has no field \"%s\"", name.c_str());
    }
  }
  return arch::encode_bd(tile_kind(kind), bd);
}

nb::dict decode_bd(const std::string& kind, const std::vector<uint32_t>& words) {
  const TileKind tile = tile_kind(kind);
  const size_t needed = static_cast<size_t>(arch::tile_geometry(tile).bd_words);
  if (words.size() < needed) {
    fail(ErrorKind::kArgument, "[decode_bd] %zu words given, a %s BD has %zu", words.size(),
         kind.c_str(), needed);
  }
  arch::Bd bd = arch::decode_bd(tile, words);
  ToDict give;
  visit(give, bd);
  return give.fields;
}

nb::dict tile_geometry(const std::string& kind) {
  const arch::TileGeometry& tile = arch::tile_geometry(tile_kind(kind));
  nb::dict out;
  out["kind"] = kind;
  out["name"] = tile.name;
  out["memory_bytes"] = tile.memory_bytes;
  out["locks"] = tile.locks;
  out["bds"] = tile.bds;
  out["channels"] = tile.channels;
  out["bd_words"] = tile.bd_words;
  out["address_dims"] = tile.address_dims;
  out["max_length"] = tile.max_length;
  out["max_step"] = tile.max_step;
  out["max_wrap"] = tile.max_wrap;
  out["max_iteration"] = tile.max_iteration;
  out["lock_base"] = tile.lock_base;
  out["bd_base"] = tile.bd_base;
  out["s2mm_base"] = tile.s2mm_base;
  out["mm2s_base"] = tile.mm2s_base;
  out["switch_base"] = tile.switch_base;
  return out;
}

nb::dict device_geometry(const std::string& name) {
  const arch::Geometry& device = arch::device_geometry(std::string_view(name));
  nb::dict out;
  out["name"] = device.name;
  out["generation"] = static_cast<int>(device.generation);
  out["columns"] = device.columns;
  out["rows"] = arch::kRows;
  out["core_rows"] = arch::kCoreRows;
  out["first_core_row"] = arch::kFirstCoreRow;
  out["shim_burst"] = device.shim_burst;
  out["clock_hz"] = device.clock_hz;
  return out;
}

// Sides by name, each (first port, ports); those that no route uses are left out.
nb::dict switch_ports(const std::string& kind, bool master) {
  using enum arch::PortSide;
  const std::pair<arch::PortSide, const char*> sides[] = {{kDma, "dma"},   {kSouth, "south"},
                                                          {kWest, "west"}, {kNorth, "north"},
                                                          {kEast, "east"}, {kControl, "control"}};
  nb::dict out;
  for (const arch::PortRange& range : arch::port_ranges(tile_kind(kind), master)) {
    for (const auto& [side, name] : sides) {
      if (range.side == side) out[name] = nb::make_tuple(range.first, range.count);
    }
  }
  return out;
}

nb::tuple shim_dma_port(const std::string& direction, int channel) {
  if (channel < 0 || channel >= arch::tile_geometry(TileKind::kShim).channels) {
    fail(ErrorKind::kArgument, "[shim_dma_port] channel %d; a shim tile has 0 and 1", channel);
  }
  const arch::ShimDmaPort& port = arch::shim_dma_port(direction_of(direction), channel);
  return nb::make_tuple(port.lane, port.offset, port.shift);
}

uint32_t tile_address(int col, int row, uint32_t offset) {
  const bool fits = col >= 0 && col < 1 << (32 - arch::kColShift) && row >= 0 &&
                    row < 1 << (arch::kColShift - arch::kRowShift) && offset <= arch::kOffsetMask;
  if (!fits) {
    fail(ErrorKind::kArgument,
         "[tile_address] column %d row %d offset 0x%x; the address has 7, 5 and 20 bits for them",
         col, row, offset);
  }
  return arch::tile_address(col, row, offset);
}

uint32_t channel_control(const std::string& kind, const std::string& direction, int channel) {
  const TileKind tile = tile_kind(kind);
  const int channels = arch::tile_geometry(tile).channels;
  if (channel < 0 || channel >= channels) {
    fail(ErrorKind::kArgument, "[channel_control] channel %d; a %s tile has 0..%d", channel,
         kind.c_str(), channels - 1);
  }
  return arch::channel_control(tile, direction_of(direction), channel);
}

}  // namespace

void init_arch(nb::module_& m) {
  nb::module_ arch_module = m.def_submodule("arch", "Geometry, registers and BD encoding.");
  arch_module.def("encode_bd", encode_bd, nb::arg("kind"), nb::arg("fields"),
                  "Register words of a BD. kind: shim, mem, core; fields: members of arch::Bd.");
  arch_module.def("decode_bd", decode_bd, nb::arg("kind"), nb::arg("words"),
                  "Fields of a BD's register words, every member of arch::Bd.");
  arch_module.def("tile_geometry", tile_geometry, nb::arg("kind"),
                  "Counts, limits and register offsets of a tile kind.");
  arch_module.def("device_geometry", device_geometry, nb::arg("name"),
                  "Columns, rows, shim burst code and clock of npu1 or npu2.");
  arch_module.def("switch_ports", switch_ports, nb::arg("kind"), nb::arg("master"),
                  "Ports of a tile's stream switch: side -> (first register index, count).");
  arch_module.def("shim_dma_port", shim_dma_port, nb::arg("direction"), nb::arg("channel"),
                  "(South port, offset of the mux register, shift of its two bits) of a channel.");
  arch_module.def("tile_address", tile_address, nb::arg("col"), nb::arg("row"), nb::arg("offset"),
                  "Absolute address of an offset inside a tile.");
  arch_module.def("channel_control", channel_control, nb::arg("kind"), nb::arg("direction"),
                  nb::arg("channel"), "Offset of a DMA channel's control register.");
  arch_module.def(
      "channel_queue",
      [](const std::string& kind, const std::string& direction, int channel) {
        return channel_control(kind, direction, channel) + 4;
      },
      nb::arg("kind"), nb::arg("direction"), nb::arg("channel"),
      "Offset of a DMA channel's task queue.");
  arch_module.def(
      "bd_reachable",
      [](const std::string& kind, int channel, int bd) {
        return arch::bd_reachable(tile_kind(kind), channel, bd);
      },
      nb::arg("kind"), nb::arg("channel"), nb::arg("bd"), "Whether a channel may execute a BD.");
}

}  // namespace npu::python
