-- Wireshark dissector of the aggregation protocol (docs/protocol.md). To use it:
--   tshark -X lua_script:switch_agg.lua -r capture.pcapng -Y switch_agg
-- or copy it to Wireshark's folder of personal Lua plugins (Help > About > Folders).
local protocol = Proto("switch_agg", "In-network aggregation (SwitchML)")

local kinds = { [1] = "data of the original", [2] = "join", [3] = "leave", [4] = "reset", [5] = "probe", [6] = "saturated",
  [7] = "data of 16 bits", [8] = "data of 8 bits", [9] = "data" }
local FIRST_PORT, LAST_PORT, ORIGINAL_HEADER_BYTES, HEADER_BYTES = 0xbee0, 0xbeef, 10, 14

local fields = {
  kind = ProtoField.uint8("switch_agg.kind", "Kind", base.DEC, kinds, 0xf0),
  partial = ProtoField.bool("switch_agg.partial", "Partial result", 8, nil, 0x08),
  size = ProtoField.uint8("switch_agg.size", "Size code (32 << size elements)", base.DEC, nil, 0x07),
  job = ProtoField.uint8("switch_agg.job", "Job", base.DEC, nil, 0xf0),
  format = ProtoField.uint8("switch_agg.format", "Format", base.DEC, nil, 0x0f),
  chunk = ProtoField.uint32("switch_agg.chunk", "Chunk (tsi)", base.DEC),
  version = ProtoField.uint16("switch_agg.version", "Version of the slot", base.DEC, nil, 0x8000),
  slot = ProtoField.uint16("switch_agg.slot", "Slot", base.DEC, nil, 0x3fff),
  exponent = ProtoField.int8("switch_agg.exponent", "Block exponent", base.DEC),
  contributions = ProtoField.uint8("switch_agg.contributions", "Contributions in a partial result", base.DEC),
  epoch = ProtoField.uint32("switch_agg.epoch", "Epoch", base.DEC),
  elements = ProtoField.bytes("switch_agg.elements", "Elements"),
  element = ProtoField.int32("switch_agg.element", "Element", base.DEC),
  to_aggregator = ProtoField.bool("switch_agg.to_aggregator", "Towards the aggregator"),
}
local truncated = ProtoExpert.new("switch_agg.truncated", "Fewer bytes than the header promises", expert.group.MALFORMED,
  expert.severity.ERROR)
protocol.fields = fields
protocol.experts = { truncated }

-- The datagram at that byte of a message; returns its length and a line for the list of packets.
local function dissect(buffer, at, packet, tree)
  local kind, size = bit32.rshift(buffer(at, 1):uint(), 4), bit32.band(buffer(at, 1):uint(), 7)
  local header = kind == 1 and ORIGINAL_HEADER_BYTES or HEADER_BYTES -- p4app-switchML's own has no epoch
  local carries = kind == 1 or (kind >= 6 and kind <= 9)
  local bytes = carries and 4 * bit32.lshift(32, size) or buffer:len() - at - header
  local here = math.min(bytes, buffer:len() - at - header)
  local root = tree:add(protocol, buffer(at, header + here))
  root:add(fields.kind, buffer(at, 1))
  root:add(fields.partial, buffer(at, 1))
  root:add(fields.size, buffer(at, 1))
  root:add(fields.job, buffer(at + 1, 1))
  root:add(fields.format, buffer(at + 1, 1))
  root:add(fields.chunk, buffer(at + 2, 4))
  root:add(fields.version, buffer(at + 6, 2))
  root:add(fields.slot, buffer(at + 6, 2))
  root:add(fields.exponent, buffer(at + 8, 1))
  root:add(fields.contributions, buffer(at + 9, 1))
  if kind ~= 1 then root:add(fields.epoch, buffer(at + 10, 4)) end
  local up = packet.dst_port >= FIRST_PORT and packet.dst_port <= LAST_PORT
  root:add(fields.to_aggregator, up):set_generated()
  local what = kinds[kind] or ("kind " .. kind)
  if (kind == 1 or kind >= 7) and not up then what = "result" end
  if carries then
    local shown = root:add(fields.elements, buffer(at + header, here))
    local width = kind == 7 and 2 or kind == 8 and 1 or 4
    for place = at + header, at + header + here - width, width do shown:add(fields.element, buffer(place, width)) end
    if here < bytes and buffer:reported_len() < at + header + bytes then root:add_proto_expert_info(truncated) end
  end
  return header + bytes, string.format("%s job %d%s chunk %u slot %d.%d", what,
    bit32.rshift(buffer(at + 1, 1):uint(), 4), kind == 1 and "" or string.format(" epoch %u", buffer(at + 10, 4):uint()),
    buffer(at + 2, 4):uint(), bit32.band(buffer(at + 6, 2):uint(), 0x3fff), bit32.rshift(buffer(at + 6, 2):uint(), 15))
end

-- One datagram, or a message of several that was captured before anything cut it up.
function protocol.dissector(buffer, packet, tree)
  if buffer:len() < HEADER_BYTES then return 0 end
  packet.cols.protocol = "SwitchAgg"
  local at, count, first = 0, 0, nil
  while buffer:len() - at >= HEADER_BYTES do
    local length, line = dissect(buffer, at, packet, tree)
    at, count, first = at + length, count + 1, first or line
  end
  packet.cols.info = count == 1 and first or string.format("%s, first of %d", first, count)
  return buffer:len()
end

local ports = DissectorTable.get("udp.port")
for port = FIRST_PORT, LAST_PORT do ports:add(port, protocol) end
