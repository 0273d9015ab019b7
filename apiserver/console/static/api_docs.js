// Shows /openapi.json. A script of its own, because pages hold no inline script.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: -1,
  docExpansion: "list",
});
