// npu._npu.stream: the TXN builder, reader, disassembler and the runtime-stream checker.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "error.h"
#include "stream/txn.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using stream::Builder;
using stream::Opcode;
using stream::Operation;
using stream::Stream;

Stream parse(const nb::bytes& bytes) {
  return Stream::parse({reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()});
}

arch::Direction direction_of(const std::string& name) {
  if (name == "s2mm") return arch::Direction::kS2MM;
  if (name == "mm2s") return arch::Direction::kMM2S;
  fail(ErrorKind::kArgument, "[sync] unknown direction \"%s\"; use \"s2mm\" or \"mm2s\"",
       name.c_str());
}

nb::list word_list(std::span<const uint32_t> words) {
  nb::list out;
  for (const uint32_t word : words) out.append(word);
  return out;
}

// The members an operation's opcode gives meaning to.
nb::dict operation_dict(const Operation& op) {
  nb::dict out;
  out["opcode"] = stream::opcode_name(op.opcode);
  out["index"] = op.index;
  out["byte_offset"] = op.byte_offset;
  out["bytes"] = op.bytes;
  switch (op.opcode) {
    case Opcode::kWrite:
      out["address"] = op.address;
      out["value"] = op.value;
      break;
    case Opcode::kBlockWrite:
      out["address"] = op.address;
      out["column"] = op.column;
      out["row"] = op.row;
      out["data"] = word_list(op.data);
      break;
    case Opcode::kMaskWrite:
    case Opcode::kMaskPoll:
    case Opcode::kMaskPollBusy:
      out["address"] = op.address;
      out["value"] = op.value;
      out["mask"] = op.mask;
      break;
    case Opcode::kPreempt:
      out["level"] = op.level;
      break;
    case Opcode::kLoadPdi:
      out["pdi_id"] = op.pdi_id;
      out["pdi_bytes"] = op.pdi_bytes;
      out["address"] = op.address;
      break;
    case Opcode::kLoadPmStart:
      out["value"] = op.value;
      out["pdi_id"] = op.pdi_id;
      break;
    case Opcode::kCreateScratchpad:
      out["level"] = op.level;
      out["value"] = op.value;
      out["address"] = op.address;
      break;
    case Opcode::kUpdateReg:
      out["address"] = op.address;
      out["value"] = op.value;
      out["state_index"] = op.state_index;
      out["function"] = op.function;
      break;
    case Opcode::kSync:
      out["column"] = op.column;
      out["row"] = op.row;
      out["direction"] = op.direction == arch::Direction::kS2MM ? "s2mm" : "mm2s";
      out["channel"] = op.channel;
      out["columns"] = op.columns;
      out["rows"] = op.rows;
      break;
    case Opcode::kAddressPatch:
      out["address"] = op.address;
      out["argument"] = op.argument;
      out["argument_offset"] = op.argument_offset;
      break;
    case Opcode::kReadRegs:
    case Opcode::kRecordTimer:
    case Opcode::kMergeSync:
      out["data"] = word_list(op.data);
      break;
    default:
      break;
  }
  return out;
}

nb::list operations(const nb::bytes& bytes) {
  const Stream stream = parse(bytes);
  nb::list out;
  for (const Operation& op : stream.operations()) out.append(operation_dict(op));
  return out;
}

nb::dict header(const nb::bytes& bytes) {
  const Stream stream = parse(bytes);
  const stream::Header& h = stream.header();
  nb::dict out;
  out["major"] = static_cast<int>(h.major);
  out["minor"] = static_cast<int>(h.minor);
  out["generation"] = arch::device_geometry(static_cast<arch::Generation>(h.generation)).name;
  out["rows"] = static_cast<int>(h.rows);
  out["columns"] = static_cast<int>(h.columns);
  out["memtile_rows"] = static_cast<int>(h.memtile_rows);
  out["operations"] = h.operations;
  out["bytes"] = h.bytes;
  return out;
}

void check(const nb::bytes& bytes,
           const std::vector<std::tuple<int, int, uint32_t, uint32_t>>& rtp_words,
           const std::vector<std::tuple<int, int, int>>& rtp_locks) {
  stream::Permissions permissions;
  for (const auto& [col, row, offset, size] : rtp_words) {
    permissions.rtp_words.push_back({col, row, offset, size});
  }
  for (const auto& [col, row, id] : rtp_locks) permissions.rtp_locks.push_back({col, row, id});
  stream::check_runtime_stream(parse(bytes), permissions);
}

nb::bytes finish(const Builder& builder) {
  const std::vector<uint32_t> words = builder.finish();
  return nb::bytes(reinterpret_cast<const char*>(words.data()), words.size() * 4);
}

void bind_builder(nb::module_& m) {
  nb::class_<Builder>(m, "Builder", "Appends operations to a TXN stream (header version 0.1).")
      .def(
          "__init__",
          [](Builder* self, const std::string& generation, int columns) {
            new (self)
                Builder(arch::device_geometry(std::string_view(generation)).generation, columns);
          },
          nb::arg("generation"), nb::arg("columns"))
      .def("write", &Builder::write, nb::arg("address"), nb::arg("value"))
      .def(
          "block_write",
          [](Builder& self, uint32_t address, const std::vector<uint32_t>& data, int column,
             int row) { self.block_write(address, data, column, row); },
          nb::arg("address"), nb::arg("data"), nb::arg("column") = 0, nb::arg("row") = 0)
      .def("mask_write", &Builder::mask_write, nb::arg("address"), nb::arg("value"),
           nb::arg("mask"))
      .def("mask_poll", &Builder::mask_poll, nb::arg("address"), nb::arg("value"), nb::arg("mask"))
      .def("noop", &Builder::noop)
      .def("preempt", &Builder::preempt, nb::arg("level"))
      .def("load_pdi", &Builder::load_pdi, nb::arg("id"), nb::arg("bytes"), nb::arg("address"))
      .def(
          "sync",
          [](Builder& self, int column, int row, const std::string& direction, int channel,
             int columns,
             int rows) { self.sync(column, row, direction_of(direction), channel, columns, rows); },
          nb::arg("column"), nb::arg("row"), nb::arg("direction"), nb::arg("channel"),
          nb::arg("columns") = 1, nb::arg("rows") = 1)
      .def("address_patch", &Builder::address_patch, nb::arg("register_address"),
           nb::arg("argument"), nb::arg("offset"), nb::arg("fold") = true)
      .def("operations", &Builder::operations, "Number of operations so far.")
      .def("finish", finish, "The stream's bytes, header filled in; the builder stays usable.");
}

}  // namespace

void init_stream(nb::module_& m) {
  nb::module_ stream_module = m.def_submodule("stream", "TXN command streams.");
  bind_builder(stream_module);
  stream_module.def(
      "disassemble", [](const nb::bytes& bytes) { return stream::disassemble(parse(bytes)); },
      nb::arg("stream"), "One line per operation.");
  stream_module.def("operations", operations, nb::arg("stream"), "Every operation as a dict.");
  stream_module.def("header", header, nb::arg("stream"), "The header as a dict.");
  stream_module.def("check", check, nb::arg("stream"),
                    nb::arg("rtp_words") = std::vector<std::tuple<int, int, uint32_t, uint32_t>>(),
                    nb::arg("rtp_locks") = std::vector<std::tuple<int, int, int>>(),
                    "Raises StreamError if the stream touches more than shim tiles, the RTP words "
                    "(col, row, offset, bytes) and the RTP locks (col, row, id).");
}

}  // namespace npu::python
