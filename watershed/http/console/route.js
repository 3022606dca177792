// Addresses: the hash has the parts of a path, so that each page can be linked.

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand
  }
}

/** #/tables/public.orders/row/7 → ["tables", "public.orders", "row", "7"] */
export const parts = (hash = location.hash) => hash.replace(/^#\/?/, "").split("/").map(decoded);

export const link = (...names) => `#/${names.map(encodeURIComponent).join("/")}`;
